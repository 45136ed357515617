// Private endpoints in one subnet, and the DNS zones that give their addresses for the public names.

@description('Endpoints: name, id of the resource, group (which of its services), zone.')
param endpoints array

@description('Id of the subnet they are in.')
param subnetId string

@description('Whether to make the zones and link them to the network of the subnet.')
param makeZones bool

@description('What the names end with.')
param token string

@description('Region of the network.')
param location string

@description('Tags of all resources.')
param tags object

var networkId = join(take(split(subnetId, '/'), 9), '/')
var zones = makeZones ? union(map(endpoints, each => each.zone), []) : []
var named = makeZones ? endpoints : []

resource endpoint 'Microsoft.Network/privateEndpoints@2024-05-01' = [for each in endpoints: {
  name: 'pe-${each.name}-${token}'
  location: location
  tags: tags
  properties: {
    subnet: {
      id: subnetId
    }
    privateLinkServiceConnections: [
      {
        name: each.name
        properties: {
          privateLinkServiceId: each.id
          groupIds: [
            each.group
          ]
        }
      }
    ]
  }
}]

resource zone 'Microsoft.Network/privateDnsZones@2024-06-01' = [for each in zones: {
  name: each
  location: 'global'
  tags: tags
}]

resource link 'Microsoft.Network/privateDnsZones/virtualNetworkLinks@2024-06-01' = [for (each, i) in zones: {
  parent: zone[i]
  name: 'to-${uniqueString(networkId)}'
  location: 'global'
  tags: tags
  properties: {
    registrationEnabled: false
    virtualNetwork: {
      id: networkId
    }
  }
}]

resource addresses 'Microsoft.Network/privateEndpoints/privateDnsZoneGroups@2024-05-01' = [for (each, i) in named: {
  parent: endpoint[i]
  name: 'default'
  properties: {
    privateDnsZoneConfigs: [
      {
        name: 'address'
        properties: {
          privateDnsZoneId: resourceId('Microsoft.Network/privateDnsZones', each.zone)
        }
      }
    ]
  }
  dependsOn: [
    zone
    link
  ]
}]
