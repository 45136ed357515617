// A plan, a Service Bus subscription, and Tidemark that scales the one by the other; ../README.md says how.
targetScope = 'subscription'

@description('Name of the azd environment; part of the names of the resource groups.')
param environmentName string

@description('Region.')
param location string

@description('Object id of whoever deploys, who may then read the log.')
param operatorPrincipalId string = ''

var tags = {
  'azd-env-name': environmentName
}

resource group 'Microsoft.Resources/resourceGroups@2024-03-01' = {
  name: 'rg-${environmentName}-example'
  location: location
  tags: tags
}

module world '../../infra/world.bicep' = {
  name: 'world'
  scope: group
  params: {
    location: location
    tags: tags
    token: uniqueString(group.id)
    planName: 'plan-orders'
    topicName: 'orders'
  }
}

module tidemark '../../../infra/main.bicep' = {
  name: 'tidemark-${environmentName}'
  params: {
    environmentName: environmentName
    location: location
    operatorPrincipalId: operatorPrincipalId
    plans: [
      {
        setting: 'ORDERS_PLAN_ID'
        id: world.outputs.planId
      }
    ]
    serviceBusNamespaces: [
      {
        connection: 'OrdersServiceBus'
        id: world.outputs.serviceBusId
      }
    ]
    additionalAppSettings: {
      TIDEMARK_CONFIG: 'examples/plan_by_subscription/tidemark.toml'
    }
  }
}

@description('Resource group of the app.')
output AZURE_RESOURCE_GROUP string = tidemark.outputs.AZURE_RESOURCE_GROUP

@description('Name of the function app.')
output AZURE_FUNCTION_NAME string = tidemark.outputs.AZURE_FUNCTION_NAME
